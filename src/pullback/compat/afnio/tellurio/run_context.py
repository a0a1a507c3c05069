"""The hosted run that is under way: there is none."""

from pullback.compat.afnio.tellurio import login

__all__ = ["get_active_run_uuid", "set_active_run_uuid"]

get_active_run_uuid = set_active_run_uuid = login
