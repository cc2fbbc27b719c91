// An agent in JavaScript: audits how easy a text is to read. Node 20 or newer, no packages.
//
//   node agent.js [--port 9200] [--ready-file PATH] [--secret whsec_...]
//
// The orchestrator POSTs a job to /site-auditor and gets the finished work as the answer. With a secret, only
// requests that are signed with it (Standard Webhooks) are taken. The work itself is in readability.js.
"use strict";

const { createHmac, timingSafeEqual } = require("node:crypto");
const { renameSync, writeFileSync } = require("node:fs");
const { createServer } = require("node:http");
const { parseArgs } = require("node:util");
const { audit, report } = require("./readability.js");

const LARGEST_BODY = 8 * 1024 * 1024; // bytes
const TOLERANCE = 300; // seconds that a signature stays valid

// Every answer that is not a result. The orchestrator tries 5xx again; any other 4xx than 429 ends the run.
class Problem extends Error {
  constructor(status, code, detail) {
    super(detail);
    this.status = status;
    this.code = code;
  }
}

async function answerTo(request, secret) {
  if (request.method === "GET" && request.url === "/healthz") return { status: "ok" };
  if (request.url !== "/site-auditor") throw new Problem(404, "not_found", "The only path is /site-auditor");
  if (request.method !== "POST") throw new Problem(405, "method_not_allowed", "POST a job");
  const body = await bodyOf(request);
  if (secret) verify(secret, request.headers, body);
  const data = audit(textOf(jobIn(body)));
  if (!data) throw new Problem(422, "nothing_to_read", "There is no text in input.content to work on");
  return { output: { content: report(data), data, content_type: "text/markdown" } };
}

async function bodyOf(request) {
  const tooLarge = new Problem(413, "too_large", `A body may have ${LARGEST_BODY} bytes`);
  if (Number(request.headers["content-length"]) > LARGEST_BODY) throw tooLarge;
  const chunks = [];
  let size = 0;
  for await (const chunk of request) {
    size += chunk.length;
    if (size > LARGEST_BODY) throw tooLarge;
    chunks.push(chunk);
  }
  return Buffer.concat(chunks);
}

function verify(secret, headers, body) {
  const id = headers["webhook-id"];
  const timestamp = headers["webhook-timestamp"];
  const isRecent = Math.abs(Date.now() / 1000 - Number(timestamp)) <= TOLERANCE; // false when it is no number
  const key = Buffer.from(secret.replace(/^whsec_/, ""), "base64");
  const expected = createHmac("sha256", key).update(`${id}.${timestamp}.`).update(body).digest();
  const signatures = (headers["webhook-signature"] ?? "").split(" ").filter((one) => one.startsWith("v1,"));
  const matches = signatures.some((signature) => {
    const given = Buffer.from(signature.slice("v1,".length), "base64");
    return given.length === expected.length && timingSafeEqual(given, expected);
  });
  if (!id || !isRecent || !matches) throw new Problem(401, "bad_signature", "Not signed with our secret");
}

function jobIn(body) {
  let job = null;
  try {
    job = JSON.parse(body);
  } catch {
    // Refused below, like every other body that is no job.
  }
  if (job === null || typeof job !== "object" || Array.isArray(job)) {
    throw new Problem(400, "malformed_request", "The body is not a JSON object");
  }
  return job;
}

// An earlier agent may have handed the user's text on in its data; else the input itself is audited.
function textOf(job) {
  const text = job.input?.data?.source?.text ?? job.input?.content ?? job.params?.text ?? "";
  if (typeof text !== "string") throw new Problem(400, "malformed_request", "input.content: not a string");
  return text.toWellFormed().replaceAll("\0", " ");
}

async function handle(request, response, secret) {
  try {
    send(response, 200, "application/json", await answerTo(request, secret));
  } catch (error) {
    if (!(error instanceof Problem)) console.error(error);
    const known = error instanceof Problem ? error : new Problem(500, "agent_error", "The agent has a fault");
    const { status, code, message: detail } = known;
    const title = code.replaceAll("_", " ");
    send(response, status, "application/problem+json", { status, code, title, detail });
  }
}

function send(response, status, type, value) {
  response.writeHead(status, { "Content-Type": type }).end(JSON.stringify(value));
}

function main() {
  const text = { type: "string" };
  const options = { port: { ...text, default: "9200" }, "ready-file": text, secret: text };
  const { port, secret, "ready-file": readyFile } = parseArgs({ options }).values;
  const server = createServer((request, response) => handle(request, response, secret));
  server.listen(Number(port), "127.0.0.1", () => {
    const url = `http://127.0.0.1:${server.address().port}`;
    console.log(`Node auditor listens at ${url}`);
    if (!readyFile) return;
    writeFileSync(`${readyFile}.new`, url); // Renamed into place, so that nobody reads half an address.
    renameSync(`${readyFile}.new`, readyFile);
  });
}

main();
