"""``reducer serve``: run the daemon. `server/serve_options.py` defines the options."""

from __future__ import annotations

import sys
from typing import Any

import click

from reducer.cli.click_options import config_options, effective
from reducer.server import serve_options


@click.command("serve")
@config_options
def command(file: str | None, **given: Any) -> None:
    """Serve reductions until SIGTERM or SIGINT.

    Beyond loopback the command needs a key (--key-file), certificates (--tls-cert, --tls-key and
    --tls-ca) or --insecure.

    On Vertex the command needs no arguments: CLUSTER_SPEC lists this replica as a reducer, with its
    address. Without a key or certificates the reducer then serves without authentication, unless
    --host, REDUCER_HOST or REDUCER_INSECURE=0 is given. The image of deploy/Dockerfile sets
    REDUCER_HOST, so with this image a key, certificates or REDUCER_INSECURE=true is needed on
    Vertex, too.

    The command prints one line of JSON on stdout when workers can connect. Logs go to stderr.
    """
    found = effective(file, given)
    try:
        serve_options.check_protection(found.config)
        serve_options.check_pin(found.config)
        serve_options.make_timeline_folder(found.config)
        key = serve_options.read_key(found.config)
    except serve_options.ConfigError as error:
        raise click.UsageError(str(error)) from None
    from reducer.server.daemon.app import serve
    from reducer.server.gates.tls import TlsFiles, TlsFilesError, make_context
    from reducer.server.registry.file import RegistryFileError, check

    if found.config.mode == "tls":
        try:  # each lane does the same; checking here reports a bad file once, before lanes start
            make_context(TlsFiles(found.config.tls_cert, found.config.tls_key, found.config.tls_ca))
        except TlsFilesError as error:
            raise click.UsageError(str(error)) from None
    if found.config.registry:
        try:  # lane 0 does the same
            check(found.config.registry)
        except RegistryFileError as error:
            raise click.UsageError(str(error)) from None
    sys.exit(serve(found.config, key))
