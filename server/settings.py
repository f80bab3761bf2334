"""Settings of the runnable project. Everything a site changes comes from the environment (README.md)."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import environ
from django.core.exceptions import ImproperlyConfigured

from durable.logs import configure_logging

BASE_DIR = Path(__file__).resolve().parent.parent
env = environ.Env()

DEBUG = env.bool("DEBUG", default=False)
SECRET_KEY = env.str("SECRET_KEY", default="")
if not SECRET_KEY:
    if not DEBUG:
        raise ImproperlyConfigured("Set SECRET_KEY; only DEBUG=1 starts without one.")
    SECRET_KEY = "development-only-secret-key-that-protects-nothing-at-all"  # noqa: S105 never used without DEBUG
ALLOWED_HOSTS = env.list("ALLOWED_HOSTS", default=["localhost", "127.0.0.1", "[::1]"])

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "rest_framework",
    "drf_spectacular",
    "drf_spectacular_sidecar",
    "durable",
    "wire",
    "worker_api",
    "control_api",
    "dashboard",
    "server",
]

# The admin's middleware. `/api` goes through a handler of its own with none of it (server/asgi.py).
MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "csp.middleware.CSPMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]

ROOT_URLCONF = "server.urls"
ASGI_APPLICATION = "server.asgi.application"
APPEND_SLASH = False

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
        },
    },
]


def _database() -> dict[str, Any]:
    """The default database with the options that docs/concurrency.md asks for on each kind."""
    configured: dict[str, Any] = env.db_url("DATABASE_URL", default=f"sqlite:///{BASE_DIR / 'db.sqlite3'}")
    options = configured.setdefault("OPTIONS", {})
    if "sqlite3" in configured["ENGINE"]:
        options |= {
            "transaction_mode": "IMMEDIATE",
            "timeout": 20,
            "init_command": "PRAGMA journal_mode=WAL;PRAGMA synchronous=FULL;",
        }
        configured["TEST"] = {"NAME": str(Path(configured["NAME"]).with_suffix(".test.sqlite3"))}
    elif "postgresql" in configured["ENGINE"]:
        options.setdefault("options", "-c lock_timeout=3000")
        # Bound and prepared by the server: the statements are few and long, planning them costs more than running
        # them. A pooler in transaction mode forbids it: PREPARE_STATEMENTS=0.
        if env.bool("PREPARE_STATEMENTS", default=True):
            options |= {"server_side_binding": True, "prepare_threshold": 3}
    elif "mysql" in configured["ENGINE"]:
        options |= {
            "charset": "utf8mb4",
            "isolation_level": "read committed",
            "init_command": "SET innodb_lock_wait_timeout=3, sql_mode='STRICT_TRANS_TABLES'",
        }
        configured["TEST"] = {"CHARSET": "utf8mb4", "COLLATION": "utf8mb4_bin"}
    return configured


DATABASES = {"default": _database()}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
# MariaDB has no partial unique indexes; the one that is left out there is a second guard (durable/models/task.py).
# Subdomains and preloading (security.W005, W021) are a promise about a whole domain; a site makes it in its proxy.
SILENCED_SYSTEM_CHECKS = ["models.W036", "security.W005", "security.W021"]

AUTH_PASSWORD_VALIDATORS = [
    {"NAME": f"django.contrib.auth.password_validation.{name}"}
    for name in ("UserAttributeSimilarityValidator", "MinimumLengthValidator", "CommonPasswordValidator")
]

LANGUAGE_CODE = "en-us"
TIME_ZONE = "UTC"
USE_I18N = False
USE_TZ = True

STATIC_URL = "static/"
# Where `collectstatic` puts files for a web server that serves them itself; without one whitenoise finds them.
STATIC_ROOT = env.str("STATIC_ROOT", default=None)
WHITENOISE_USE_FINDERS = True

X_FRAME_OPTIONS = "DENY"
SECURE_REFERRER_POLICY = "same-origin"
SECURE_CONTENT_TYPE_NOSNIFF = True
SESSION_COOKIE_HTTPONLY = True
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = env.bool("SECURE_COOKIES", default=False)
SECURE_SSL_REDIRECT = env.bool("SECURE_SSL_REDIRECT", default=False)
SECURE_HSTS_SECONDS = env.int("SECURE_HSTS_SECONDS", default=0)
CONTENT_SECURITY_POLICY = {
    "DIRECTIVES": {
        "default-src": ["'self'"],
        "script-src": ["'self'"],
        "style-src": ["'self'"],
        "img-src": ["'self'", "data:"],
        "object-src": ["'none'"],
        "base-uri": ["'none'"],
        "form-action": ["'self'"],
        "frame-ancestors": ["'none'"],
    }
}

REST_FRAMEWORK = {
    "DEFAULT_PERMISSION_CLASSES": ["wire.auth.NobodyByDefault"],
    "DEFAULT_AUTHENTICATION_CLASSES": [],
    "DEFAULT_SCHEMA_CLASS": "wire.schema.OperationSchema",
    "UNAUTHENTICATED_USER": None,
}
SPECTACULAR_SETTINGS = {
    # Schemas of this version are plain JSON Schema.
    "OAS_VERSION": "3.1.0",
    "SCHEMA_PATH_PREFIX": "/api",
    "POSTPROCESSING_HOOKS": ["drf_spectacular.hooks.postprocess_schema_enum_id_removal"],
    "ENUM_GENERATE_CHOICE_DESCRIPTION": False,
    # `manage.py write_openapi --check` builds the documents as they are split; all routes in one would clash.
    "ENABLE_DJANGO_DEPLOY_CHECK": False,
    "SERVE_PERMISSIONS": ["wire.auth.Anybody"],
    "SWAGGER_UI_DIST": "SIDECAR",
    "SWAGGER_UI_FAVICON_HREF": "SIDECAR",
    # The validator badge would send the document to a server of somebody else's.
    "SWAGGER_UI_SETTINGS": {"deepLinking": True, "defaultModelsExpandDepth": 0, "validatorUrl": None},
}

# Given to the worker and control planes; a body may be as large as the engine's limit says.
DATA_UPLOAD_MAX_MEMORY_SIZE = 4 * 1024 * 1024

DURABLE = {
    key: read(f"DURABLE_{key}")
    for key, read in {
        "WORKFLOW_LEASE_SECONDS": env.int,
        "ACTIVITY_LEASE_SECONDS": env.int,
        "LONG_POLL_MAX_SECONDS": env.int,
        "DB_THREADS": env.int,
        "MAX_LOST_LEASES": env.int,
        "COUNT_REFUSED_REPORTS": env.bool,
        "CARRY_ACTIVITY_ON_WORKFLOW": env.bool,
        "CARRY_WORKFLOW_ON_ACTIVITY": env.bool,
        "CARRY_WORKFLOW_ON_WORKFLOW": env.bool,
        "CARRY_INLINE_TASK": env.bool,
    }.items()
    if f"DURABLE_{key}" in env.ENVIRON
}
if "LONG_POLL_MAX_SECONDS" in DURABLE:
    DURABLE["LONG_POLL_SECONDS"] = min(30, DURABLE["LONG_POLL_MAX_SECONDS"])
DURABLE_DEV_TOKEN = env.str("DURABLE_DEV_TOKEN", default="")

LOGGING_CONFIG = None
configure_logging(level=env.str("LOG_LEVEL", default="INFO"), as_json=not (DEBUG or sys.stderr.isatty()))
