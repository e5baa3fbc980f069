"""Sweeps: many audits as cells that are planned, run by workers anywhere, kept one by one, and never run twice."""
