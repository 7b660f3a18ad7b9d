"""`gangline migrate`: what a folder of experiments that was written for Determined needs before it runs here."""
