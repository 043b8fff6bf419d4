"""What the deployment measures of itself: rollups, figures of the fleet, history, alerts, log lines.

Pure but for `store` (HDF5), `hooks` (webhook, command) and `logs`. See docs/explanation/telemetry.md.
"""
