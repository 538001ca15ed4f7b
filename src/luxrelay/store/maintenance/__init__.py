"""Maintenance: audit, repair, upgrade of old layouts."""
