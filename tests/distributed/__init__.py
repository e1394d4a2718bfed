"""Tests of what ranks do together."""
