"""The gateway: the service that users reach by gRPC and HTTP, and to which trial runners deliver their logs and
metrics. `services/gateway/program.py` builds it out of its parts; `services/gateway/size_watch.py` measures sizes.

Start: program.py
"""
