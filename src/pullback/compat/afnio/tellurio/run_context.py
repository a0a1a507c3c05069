"""The hosted run that is under way: there is none."""

from pullback.compat.afnio.tellurio.run import login

__all__ = ["get_active_run", "get_active_run_uuid", "set_active_run", "set_active_run_uuid"]

get_active_run = set_active_run = get_active_run_uuid = set_active_run_uuid = login
