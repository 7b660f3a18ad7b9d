"""The slots of an agent: the GPUs of the machine, their health, and artificial CPU slots.

Start: slot.py
"""
