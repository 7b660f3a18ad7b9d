"""Floor 2: code that the four services share: settings, telemetry, security, gRPC server, election. Never imported by
gangline/.

Start: election.py
"""
