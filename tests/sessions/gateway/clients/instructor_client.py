"""instructor: an answer in a given shape, a repair after one that does not validate, over chat and Responses tools."""

import os

import instructor
from openai import OpenAI
from pydantic import BaseModel, field_validator


class Sum(BaseModel):
    """The sum of two numbers."""

    value: int

    @field_validator("value")
    @classmethod
    def positive(cls, value: int) -> int:
        if value < 0:
            raise ValueError("must not be negative")
        return value


modes = {"chat": instructor.Mode.TOOLS, "responses": instructor.Mode.RESPONSES_TOOLS}
client = instructor.from_openai(OpenAI(), mode=modes[os.environ["SPEAK"]])
ask = {"role": "user", "content": "What is 2 + 3?"}
print(client.chat.completions.create(model="m", messages=[ask], response_model=Sum, max_retries=3))
