"""What several tests share: clusters, etcd, readers of the source. Holds no test."""
