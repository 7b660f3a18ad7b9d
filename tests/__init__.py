"""Every test, and under support/ what several of them share."""
