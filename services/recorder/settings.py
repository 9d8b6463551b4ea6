"""What the recorder needs of the engine's settings."""

from __future__ import annotations

from shared.config import BadSetting, Settings


def dsn_of(settings: Settings) -> str:
    """Where the read models are.

    Raises:
        BadSetting: no PostgreSQL is configured.
    """
    if settings.postgres.dsn is None:
        raise BadSetting(
            "the recorder needs PostgreSQL: set AETHERIUM_POSTGRES__DSN=postgresql://user:password@host:5432/database, "
            "or start the engine with 'aetherium up', which brings its own",
            field="postgres.dsn",
        )
    return settings.postgres.dsn.get_secret_value()
