"""The command `breakeven-proxy`."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from dataclasses import asdict, is_dataclass
from typing import Any

import click
import orjson
import uvloop
import yaml

from breakeven import __version__
from breakeven.errors import ConfigError, InputError
from breakeven.exitcodes import ExitCode, help_text
from breakeven_proxy.config import ProxySettings, read_settings, with_flags
from breakeven_proxy.control.gateway import read_token, steering_plan
from breakeven_proxy.control.proof import load_certificate
from breakeven_proxy.observe.log import start_logging
from breakeven_proxy.observe.recorder import read_salt
from breakeven_proxy.series import series_of
from breakeven_proxy.server import Proxy
from breakeven_wire import Stamps

EPILOG = "\b\nExit codes:\n" + help_text()


@click.group(epilog=EPILOG)
@click.version_option(__version__, prog_name="breakeven-proxy")
def cli() -> None:
    """Relays LLM traffic to vLLM, byte for byte, and meters every stream."""


@cli.command(epilog=EPILOG)
@click.option("--upstream", metavar="URL", help="The engine; one arm, metering only.")
@click.option("--arm", metavar="NAME", help="Name of that arm (default: baseline).")
@click.option("--listen", metavar="HOST:PORT", help="Traffic port; 0 lets the system choose.")
@click.option("--admin", metavar="HOST:PORT", help="Metrics, health and status.")
@click.option("--stamps", type=click.Choice(["kernel", "loop"]), help="Kind of time stamp.")
@click.option("--config", metavar="FILE", type=click.Path(), help="YAML; flags go over it.")
def serve(
    upstream: str | None,
    arm: str | None,
    listen: str | None,
    admin: str | None,
    stamps: Stamps | None,
    config: str | None,
) -> None:
    """Runs the proxy until SIGTERM, then lets streams finish.

    \b
    Example:
      breakeven-proxy serve --upstream http://127.0.0.1:8000 \\
        --listen 127.0.0.1:8100 --admin 127.0.0.1:8101
    """

    def read() -> ProxySettings:
        return with_flags(
            read_settings(config),
            file=config,
            upstream=upstream,
            arm=arm,
            listen=listen,
            admin=admin,
            stamps=stamps,
        )

    settings = read()
    _check_secrets(settings, config)
    uvloop.run(_serve(settings, read))


async def _serve(settings: ProxySettings, reread: Callable[[], ProxySettings]) -> None:
    log = start_logging()
    asyncio.get_running_loop().set_exception_handler(
        lambda _, context: log.error("unhandled", context.get("exception"))
    )
    proxy = Proxy(settings, log, reread=reread)
    try:
        bound = await proxy.start()
    except OSError as error:
        await proxy.close()
        raise InputError(
            f"cannot listen: {error.strerror or 'address in use'}",
            key="listen/admin",
            value=f"{settings.listen}, {settings.admin}",
            mend="choose free addresses",
        ) from None
    # One line for scripts that let the system choose the ports.
    click.echo(f"listening http://{bound.listen} admin http://{bound.admin}")
    sys.stdout.flush()
    await proxy.wait()


@cli.command(epilog=EPILOG)
@click.option("--config", metavar="FILE", type=click.Path(), required=True)
@click.option("--json", "as_json", is_flag=True, help="Machine-readable.")
def check(config: str, as_json: bool) -> None:
    """Validates a configuration and prints what is in force, and how many series it can make.

    \b
    Example:
      breakeven-proxy check --config proxy.yaml
    """
    settings = with_flags(
        read_settings(config),
        file=config,
        upstream=None,
        arm=None,
        listen=None,
        admin=None,
        stamps=None,
    )
    _check_secrets(settings, config)
    # The certificate and the rollback headroom, as `serve` would see them.
    steering_plan(settings, load_certificate(settings), start_logging())
    effective, series = _plain(settings), series_of(settings)
    if as_json:
        click.echo(orjson.dumps({"config": effective, "series": series}).decode())
        return
    click.echo(yaml.safe_dump(effective, sort_keys=False, allow_unicode=True), nl=False)
    click.echo(f"# series: at most {series}")


def _check_secrets(settings: ProxySettings, file: str | None) -> None:
    """The files that hold secrets, before anything is started.

    Raises:
        ConfigError: one of them cannot be used.
    """
    try:
        read_token(settings.admin_token_file)
        if settings.trace_recording is not None:
            read_salt(settings.trace_recording)
    except ConfigError as error:
        raise ConfigError(
            error.what, file=file, key=error.key, value=error.value, mend=error.mend
        ) from None


def _plain(value: Any) -> Any:
    """Dataclasses, mappings and tuples as YAML's own types."""
    if is_dataclass(value) and not isinstance(value, type):
        return {key: _plain(item) for key, item in asdict(value).items()}
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


def main() -> None:
    """Entry point; the only place that exits."""
    try:
        cli.main(standalone_mode=False)
    except InputError as error:
        click.echo(f"breakeven-proxy: {error}", err=True)
        sys.exit(ExitCode.USAGE)
    except click.UsageError as error:
        error.show()
        sys.exit(ExitCode.USAGE)
    except click.ClickException as error:
        error.show()
        sys.exit(ExitCode.ERROR)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(ExitCode.INTERRUPTED)
