"""Jobs whose workers come and go: see docs/elastic.md."""

from reducer_client.elastic.joining import connect
from reducer_client.elastic.members import ElasticGroup, Member
from reducer_client.elastic.state import ArrayState, State

__all__ = ["ArrayState", "ElasticGroup", "Member", "State", "connect"]
