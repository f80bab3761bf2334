"""The base of every API view: an async DRF view that checks in a fixed order and answers in its plane's envelope.

Order: body (size, media type, JSON) → token → role → version → namespace → the view's own fields → its operation. A
subclass names its plane and its route, and writes `get`, `post` or `delete`: one call of one operation.
"""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, ClassVar

import structlog
from django.http import HttpRequest, HttpResponse
from rest_framework.exceptions import ValidationError
from rest_framework.serializers import Serializer
from rest_framework.views import APIView

from durable import conf, logs, metrics
from durable.jsontext import dump_json
from durable.protocol import SERVED, ProtocolVersion
from durable.refusals import invalid
from wire import errors
from wire.answer_fields import Answers, Body
from wire.answers import ControlEnvelope, WorkerEnvelope
from wire.auth import authenticate, check_namespace, check_role
from wire.bodies import read_json
from wire.capabilities import capabilities_text
from wire.control_block import control_block
from wire.errors import ErrorAnswer, HttpError
from wire.roles import OPEN, ROUTE_ROLES
from wire.tokens import Access
from wire.validation import flat_errors
from wire.versions import check_control_version, worker_version

log = structlog.get_logger("durable.api")


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """An admitted request: who, where, in which version, with what body."""

    request: HttpRequest
    access: Access
    namespace: str
    version: ProtocolVersion
    body: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Answer:
    """What a view says; the plane's envelope comes around it."""

    body: dict[str, Any]
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)


_NOBODY = Access(client="", roles=frozenset(), namespaces=frozenset(), namespace_exists=False)


class ApiView(APIView):
    """One route. `route` is its row in wire.roles; `request_serializer` describes and validates its body."""

    route: ClassVar[str]
    request_serializer: ClassVar[type[Serializer[Any]] | None] = None
    query_serializer: ClassVar[type[Serializer[Any]] | None] = None
    # For the API documents: what each method can answer besides what this class answers by itself.
    answers: ClassVar[dict[str, Answers]] = {}
    # Whether the human text of a refusal is called `error` (worker plane) or `message`.
    says_error: ClassVar[bool] = False

    # Django asks the class, not the handlers: `dispatch` is async whatever methods a view has.
    view_is_async = True

    # -- one plane's ways, overridden by its base ----------------------------------------------------------------------

    def check_version(self, request: HttpRequest) -> ProtocolVersion:
        """The version the request speaks, or a 400."""
        return SERVED

    def needs_namespace(self) -> bool:
        """Whether the namespace named must exist."""
        return True

    def envelope(self, body: dict[str, Any], call: Call | None, path: dict[str, Any]) -> dict[str, Any]:
        """The body as its plane sends it."""
        return body

    def answer_envelope(self) -> type[Body] | None:
        """The keys that `envelope` adds, for the API documents."""
        return None

    def plane_headers(self) -> dict[str, str]:
        return {}

    def unavailable(self, answer: ErrorAnswer, call: Call, path: dict[str, Any]) -> ErrorAnswer:
        """A 503 in the exact shape that clients of this route retry on."""
        return answer

    # -- the fixed order -----------------------------------------------------------------------------------------------

    async def dispatch(self, request: HttpRequest, *_: Any, **path: Any) -> HttpResponse:  # type: ignore[override]
        began = time.perf_counter()
        structlog.contextvars.clear_contextvars()
        request_id = request.META.get("HTTP_X_REQUEST_ID", "")[:64] or uuid.uuid4().hex
        logs.bind(request_id=request_id, **{name: path.get(name) for name in ("workflow_id", "run_id", "task_id")})
        call = None
        try:
            call = self._read(request)
            call = await self._admit(call)
            handler = self._handler(request)
            answer = await handler(call, **path)
        except Exception as error:
            answer = await self._answer_error(error, call, path)
        # A label must not be what a caller makes up.
        method = request.method if (request.method or "").lower() in self.http_method_names else "other"
        metrics.REQUESTS.labels(route=self.route, method=method, status=answer.status).inc()
        self._log(request, answer, time.perf_counter() - began)
        return self._respond(answer, call, path)

    def _log(self, request: HttpRequest, answer: Answer, seconds: float) -> None:
        """Refusals and faults are worth a line; what went well is told at debug level only, it is the hot path."""
        say = log.debug if answer.status < 400 else log.info if answer.status < 500 else log.warning
        say(
            "request",
            route=self.route,
            method=request.method,
            status=answer.status,
            # In a good answer it may be what the caller gave as their reason, in their own words.
            reason=answer.body.get("reason") if answer.status >= 400 else None,
            ms=round(seconds * 1000, 1),
        )

    def _read(self, request: HttpRequest) -> Call:
        """The request before anything is known of its caller: what even a 503 repeats."""
        body = read_json(request)
        return Call(
            request=request, access=_NOBODY, namespace=_named_namespace(request) or "", version=SERVED, body=body
        )

    async def _admit(self, call: Call) -> Call:
        request, roles = call.request, ROUTE_ROLES[self.route]
        if roles is OPEN:
            return call
        access = await authenticate(request, call.namespace)
        check_role(access, roles)
        version = self.check_version(request)
        if not call.namespace:
            raise HttpError(400, "invalid_namespace", "The namespace must be one name.")
        if self.needs_namespace():
            check_namespace(access, call.namespace)
        logs.bind(namespace=call.namespace)
        return replace(call, access=access, version=version)

    def _handler(self, request: HttpRequest) -> Any:
        method = (request.method or "").lower()
        handler = getattr(self, method, None) if method in self.http_method_names else None
        if handler is None or method == "options":
            raise HttpError(405, "method_not_allowed", "This route does not take this method.")
        return handler

    async def _answer_error(self, error: Exception, call: Call | None, path: dict[str, Any]) -> Answer:
        answer = errors.answer_for(error, says_error=self.says_error)
        if answer is None:
            metrics.FAULTS.inc()
            log.error(
                "fault",
                route=self.route,
                error=type(error).__name__,
                traceback=logs.traceback_without_values(error),
            )
            answer = errors.fault_answer()
        elif answer.status == 503 and call is not None:
            answer = self.unavailable(answer, call, path)
        return Answer(answer.body, answer.status, answer.headers)

    def _respond(self, answer: Answer, call: Call | None, path: dict[str, Any]) -> HttpResponse:
        text = dump_json(self.envelope(answer.body, call, path))
        response = HttpResponse(text.encode(), status=answer.status, content_type="application/json")
        for name, value in {**self.plane_headers(), **answer.headers}.items():
            response[name] = value
        return response

    # -- for views -----------------------------------------------------------------------------------------------------

    def validated(self, call: Call) -> dict[str, Any]:
        """The body's known fields, checked and converted; unknown ones are ignored. Refuses validation_failed."""
        if self.request_serializer is None:
            return {}
        return self.checked(self.request_serializer, call.body)

    def queried(self, call: Call) -> dict[str, Any]:
        """The same for the query string."""
        if self.query_serializer is None:
            return {}
        return self.checked(self.query_serializer, call.request.GET.dict())

    @staticmethod
    def checked(serializer_class: type[Serializer[Any]], data: dict[str, Any]) -> dict[str, Any]:
        """The same for any data."""
        try:
            return dict(_validator(serializer_class).run_validation(data))
        except ValidationError as error:
            raise invalid(flat_errors(error.detail)) from error


@cache
def _validator(serializer_class: type[Serializer[Any]]) -> Serializer[Any]:
    """One instance a class: making one copies every field, validating with it leaves no trace in it."""
    return serializer_class()


class WorkerView(ApiView):
    """Base of the worker plane: protocol version header, worker envelope."""

    says_error = True

    def check_version(self, request: HttpRequest) -> ProtocolVersion:
        return worker_version(request)

    def envelope(self, body: dict[str, Any], call: Call | None, path: dict[str, Any]) -> dict[str, Any]:
        return {**body, "protocol_version": str(SERVED), "server_capabilities": capabilities_text()}

    def answer_envelope(self) -> type[Body] | None:
        return WorkerEnvelope

    def plane_headers(self) -> dict[str, str]:
        return {"X-Durable-Workflow-Protocol-Version": str(SERVED)}


class ControlView(ApiView):
    """Base of the control plane: its version header, and the `control_plane` block around workflow operations."""

    # The operation's name in the block; None for routes that carry no block.
    operation: ClassVar[str | None] = None

    def check_version(self, request: HttpRequest) -> ProtocolVersion:
        check_control_version(request)
        return SERVED

    def envelope(self, body: dict[str, Any], call: Call | None, path: dict[str, Any]) -> dict[str, Any]:
        operation = self.operation_of(call)
        if operation is None:
            return body
        return {**body, "control_plane": control_block(operation, body, path)}

    def answer_envelope(self) -> type[Body] | None:
        return None if self.operation_of(None) is None else ControlEnvelope

    def operation_of(self, call: Call | None) -> str | None:
        """Most routes are one operation; a route with two methods tells them apart."""
        return self.operation

    def plane_headers(self) -> dict[str, str]:
        return {"X-Durable-Workflow-Control-Plane-Version": "2"}


def _named_namespace(request: HttpRequest) -> str | None:
    """The namespace a request names, lower-cased; None if it is not one plain name."""
    named = request.META.get("HTTP_X_NAMESPACE", "").strip()
    if not named:
        if any(key.startswith("namespace[") for key in request.GET):
            return None
        values = request.GET.getlist("namespace")
        if len(values) > 1:
            return None
        named = (values[0].strip() if values else "") or conf.current().default_namespace
    return str(named).lower()
