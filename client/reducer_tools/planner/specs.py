"""Reads a job's specification, of Vertex AI or of Cloud ML Engine."""

from __future__ import annotations

from reducer_tools.planner import mlengine, vertex
from reducer_tools.planner.fields import Section, SpecError, shorten
from reducer_tools.planner.pools import Job


def read_job(document: object) -> Job:
    """The pools of a Vertex AI job or a Cloud ML Engine config.yaml.

    Raises SpecError with the path of an invalid field.
    """
    section = Section("", document)
    if "trainingInput" in section:
        return mlengine.read_training(section).as_job()
    spec = vertex.find_job_spec(section)
    if spec is None:
        expected = "workerPoolSpecs (Vertex AI) or trainingInput (Cloud ML Engine)"
        got = shorten(", ".join(map(repr, section.names))) or "an empty mapping"
        raise SpecError("document", expected, got)
    return vertex.read_job(spec)
