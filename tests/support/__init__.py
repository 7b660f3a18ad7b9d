"""Code that several tests share: clusters, etcd, readers of the source. Contains no test."""
