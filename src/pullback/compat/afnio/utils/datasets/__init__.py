"""Published datasets, read from a folder."""

from pullback.compat.afnio.utils.datasets.facility_support import FacilitySupport

__all__ = ["FacilitySupport"]
