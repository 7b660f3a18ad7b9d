"""The gateway's file storage: code archives, and the deletion of checkpoints."""
