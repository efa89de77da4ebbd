"""``reducer keygen``: makes the key that workers and reducers share."""

from __future__ import annotations

import click

from reducer import keyfile
from reducer.wire.codes import MAX_JOB_BYTES


@click.command("keygen")
@click.argument("file", default="reducer.key")
@click.option(
    "--job",
    metavar="NAME",
    help="Derive the key of this job from the reducers' key in --from, instead of a new key.",
)
@click.option("--from", "master", metavar="FILE", help="Key file of the reducers; for --job.")
def command(file: str, job: str | None, master: str | None) -> None:
    """Write a key to a new file, and print the path of the file.

    The file is FILE, by default reducer.key. The command does not overwrite a file.

    Without --job the key is new and random: the key of all reducers (`reducer serve --key-file`).
    Workers may use the same key file (REDUCER_KEY_FILE). They can then join every job. If jobs do
    not trust each other, give the workers of each job a key of their own, by --job and --from. A
    worker with the key of one job cannot join another.

    \b
      reducer keygen reducer.key
      reducer keygen --job resnet --from reducer.key resnet.key
    """
    if (job is None) != (master is None):
        raise click.UsageError("--job and --from: expected both of them, or neither")
    if job is not None and not 1 <= len(job.encode()) <= MAX_JOB_BYTES:
        raise click.UsageError(f"--job: expected a name of 1 to {MAX_JOB_BYTES} bytes")
    try:
        if job is not None and master is not None:
            keyfile.make_for_job(file, job, master)
        else:
            keyfile.make(file)
    except keyfile.KeyFileError as error:
        raise click.ClickException(str(error)) from None
    click.echo(file)
