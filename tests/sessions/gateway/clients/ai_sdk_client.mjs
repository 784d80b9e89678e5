// The AI SDK: a tool in a loop, then a second question, streamed; over Responses (its default) or Chat Completions.
import { createOpenAI } from "@ai-sdk/openai";
import { generateText, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";

const openai = createOpenAI({ baseURL: process.env.OPENAI_BASE_URL, apiKey: process.env.OPENAI_API_KEY });
const model = process.env.SPEAK === "chat" ? openai.chat("m") : openai("m");
const add = tool({
  description: "Add two numbers.",
  inputSchema: z.object({ a: z.number(), b: z.number() }),
  execute: async ({ a, b }) => String(a + b),
});
const settings = { model, system: "Use add.", tools: { add }, stopWhen: stepCountIs(4), maxOutputTokens: 2000, temperature: 0, topP: 0.9, seed: 7, maxRetries: 0 };

const messages = [{ role: "user", content: "What is 2 + 3?" }];
const first = await generateText({ ...settings, messages });
console.log(first.text);
messages.push(...first.response.messages, { role: "user", content: "And now?" });
const second = streamText({ ...settings, messages });
console.log(await second.text);
