"""PURE (all but `state_store`): the leader's records, their form in etcd, and facts that follow from them.

Start: records.py
"""
