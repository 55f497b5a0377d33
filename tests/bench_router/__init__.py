"""Tests of the router's benchmark."""
