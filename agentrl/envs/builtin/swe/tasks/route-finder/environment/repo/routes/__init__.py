"""Ways on a map."""

from routes.roadmap import RoadMap
from routes.shortest import shortest

__all__ = ["RoadMap", "shortest"]
