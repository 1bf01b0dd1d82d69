"""`/tokenize` and `/detokenize`, as vLLM has them. A worker of the model answers; the gateway has no tokenizer."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from fastapi.responses import Response
from pydantic import Field, model_validator
from pydantic_core import to_json

from octavo.dialects.openai.fields import Body
from octavo.dialects.openai.requests import ChatCompletionRequest
from octavo.terms.errors import WorkerNotFound
from octavo.terms.fields import ModelName, TokenIds
from octavo.terms.messages import TokenizerAnswer
from octavo.terms.models import JobRequest
from octavo.terms.workers import ModelCard
from octavo_gateway.auth import CurrentTenant, caller_of
from octavo_gateway.errors import ApiError
from octavo_gateway.http.body import JSON, apart, described, json_body
from octavo_gateway.state import Gateway

router = APIRouter(tags=["tokenizer"])


class TokenizeRequest(Body):
    """A prompt, or messages with whatever goes into a chat template. The tokens are those of a job's prompt."""

    model: ModelName | None = None
    prompt: str | None = None
    messages: Any = None
    tools: Any = None
    chat_template_kwargs: Any = None
    add_special_tokens: bool | None = None
    return_token_strs: bool = False
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None

    @model_validator(mode="after")
    def _one_kind(self) -> TokenizeRequest:
        if (self.prompt is None) == (self.messages is None):
            raise ValueError("give exactly one of prompt and messages")
        if self.prompt is not None and (self.continue_final_message or self.add_generation_prompt is False):
            raise ValueError("continue_final_message and add_generation_prompt go with messages, not with a prompt")
        if self.messages is not None and self.add_special_tokens:
            raise ValueError("add_special_tokens goes with a prompt: the chat template of messages has its own")
        return self

    def job(self, model: str) -> JobRequest:
        """The job that would have this prompt. Raises ValidationError."""
        if self.prompt is not None:
            return JobRequest(model=model, prompt=self.prompt, add_special_tokens=self.add_special_tokens is not False)
        of_template = {
            "messages": self.messages,
            "tools": self.tools,
            "chat_template_kwargs": self.chat_template_kwargs,
            "add_generation_prompt": self.add_generation_prompt,
            "continue_final_message": self.continue_final_message,
        }
        return ChatCompletionRequest.model_validate({"model": model, **of_template}).jobs()[0]


class DetokenizeRequest(Body):
    """Token ids."""

    model: ModelName | None = None
    tokens: TokenIds = Field()


@router.post("/tokenize", openapi_extra=described(TokenizeRequest))
async def tokenize(
    request: Request, _: CurrentTenant, body: Annotated[TokenizeRequest, Depends(json_body(TokenizeRequest))]
) -> Response:
    """The token ids of a prompt, how many they are, and how many the model takes."""
    gateway: Gateway = request.state.gateway
    card = await known_model(request, body.model)
    answer = await tokenized(gateway, await apart(request, lambda: body.job(card.name)))
    found = {
        "count": len(answer.token_ids),
        "max_model_len": card.max_model_len,
        "tokens": answer.token_ids,
        "token_strs": answer.names if body.return_token_strs else None,
    }
    return Response(await apart(request, lambda: to_json(found)), media_type=JSON)  # json takes six times as long


@router.post("/detokenize", openapi_extra=described(DetokenizeRequest))
async def detokenize(
    request: Request, _: CurrentTenant, body: Annotated[DetokenizeRequest, Depends(json_body(DetokenizeRequest))]
) -> dict[str, str]:
    """The text of token ids, control tokens included. `503` where no worker answers."""
    gateway: Gateway = request.state.gateway
    card = await known_model(request, body.model)
    try:
        return {"prompt": await gateway.client.detokenize(card.name, body.tokens)}
    except WorkerNotFound as error:
        raise _no_answer(error) from None


async def tokenized(gateway: Gateway, job: JobRequest) -> TokenizerAnswer:
    """The prompt of a job as tokens. Raises InvalidRequest, and ApiError 503 while no worker answers."""
    try:
        return await gateway.client.tokenize(job)
    except WorkerNotFound as error:
        raise _no_answer(error) from None


def _no_answer(error: WorkerNotFound) -> ApiError:
    return ApiError(503, error.message, code=error.code, headers={"Retry-After": "1"})


async def known_model(request: Request, model: str | None) -> ModelCard:
    """The model that is meant: where there is but one, it needs no name. Raises ApiError 404, and 403 for one that the
    request's key is not for."""
    caller = await caller_of(request)
    if model is not None:
        caller.check_model(model)
    gateway: Gateway = request.state.gateway
    models = [card for card in await gateway.client.models() if any(map(caller.may_use, card.names))]
    cards = {name: card for card in models for name in card.names}
    if model is None and len(models) == 1:
        return models[0]
    if model not in cards:
        known = ", ".join(cards) or "none: start a worker first"
        message = "name a model" if model is None else f"no worker has ever served the model {model[:200]!r}"
        raise ApiError(404, f"{message}; known models: {known}", code="model_not_found", param="model")
    return cards[model]
