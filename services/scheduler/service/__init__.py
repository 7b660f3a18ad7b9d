"""What the scheduler serves over gRPC: one module for each service of the protos. They map messages; they decide
nothing."""
