"""The pretended device is registered once: pytest must not import it a second time to look for doctests."""

collect_ignore = ["pretended.py"]
