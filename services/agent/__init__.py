"""The agent: owns one machine's slots, starts one trial runner for each allocation, and outlives none of them."""
