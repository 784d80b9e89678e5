"""Resources servers of NeMo Gym's own classes: python nemo_gym_server.py PORT.

/counter has a state for each session and adds by a tool, /quiz compares what is said, /broken gives rewards that are no
measurements, as it says.
"""

import sys
from unittest.mock import MagicMock

import uvicorn
from fastapi import FastAPI, Request
from nemo_gym.base_resources_server import (
    BaseResourcesServerConfig,
    BaseSeedSessionRequest,
    BaseSeedSessionResponse,
    BaseVerifyRequest,
    BaseVerifyResponse,
    SimpleResourcesServer,
)
from nemo_gym.server_utils import SESSION_ID_KEY, ServerClient
from pydantic import BaseModel, ConfigDict, PrivateAttr


class Seed(BaseSeedSessionRequest):
    model_config = ConfigDict(extra="allow")
    start: int = 0


class Wanted(BaseVerifyRequest):
    model_config = ConfigDict(extra="allow")
    wanted: str


class Verdict(BaseVerifyResponse):
    model_config = ConfigDict(extra="allow")
    count: int = 0
    mask_sample: bool = False


class Add(BaseModel):
    number: int


class Counter(SimpleResourcesServer):
    config: BaseResourcesServerConfig
    _counts: dict[str, int] = PrivateAttr(default_factory=dict)

    def setup_webserver(self) -> FastAPI:
        app = super().setup_webserver()
        app.post("/add")(self.add)
        app.post("/stop")(self.stop)
        return app

    async def seed_session(self, request: Request, body: Seed) -> BaseSeedSessionResponse:
        self._counts[request.session[SESSION_ID_KEY]] = body.start
        return BaseSeedSessionResponse()

    async def add(self, request: Request, body: Add) -> dict[str, int]:
        self._counts[request.session[SESSION_ID_KEY]] += body.number
        return {"count": self._counts[request.session[SESSION_ID_KEY]]}

    async def stop(self) -> dict[str, bool]:
        return {"done": True}

    async def verify(self, request: Request, body: Wanted) -> Verdict:
        count = self._counts.get(request.session[SESSION_ID_KEY], 0)
        return Verdict(**body.model_dump(), reward=float(str(count) == body.wanted), count=count)


class Quiz(SimpleResourcesServer):
    config: BaseResourcesServerConfig

    async def verify(self, body: Wanted) -> Verdict:
        said = [part.text for item in body.response.output if item.type == "message" for part in item.content]
        return Verdict(**body.model_dump(), reward=float(said[-1:] == [body.wanted]))


class Broken(Quiz):
    async def verify(self, body: Wanted) -> Verdict:
        return Verdict(**body.model_dump(), reward=0.0, mask_sample=True, failure_reason="the judge is gone")


port = int(sys.argv[1])
root = FastAPI()
for kind in (Counter, Quiz, Broken):
    name = kind.__name__.lower()
    config = BaseResourcesServerConfig(host="127.0.0.1", port=port, entrypoint="", name=name)
    root.mount(f"/{name}", kind(config=config, server_client=MagicMock(spec=ServerClient)).setup_webserver())
uvicorn.run(root, host="127.0.0.1", port=port, log_level="warning")
