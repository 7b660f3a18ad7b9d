"""PURE: the settled configuration of an experiment: a frozen record with all defaults, made once from the stored text.

The scheduler, the gateway, the agent, the trial runner, the ranks and the clients read it in place of the text.

Start: record.py
"""
