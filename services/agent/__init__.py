"""The agent: owns one machine's slots and starts one trial runner for each allocation. Trial runners outlive the
agent.

Start: agent.py
"""
