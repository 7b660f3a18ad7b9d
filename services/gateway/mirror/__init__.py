"""The cluster's state as the gateway mirrors it from etcd, and what is decided by it alone."""
