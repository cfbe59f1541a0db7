// A client of bursar in Node, without any package: prints what it was answered.
const base = process.argv[2];

async function ask(method, path, body) {
  const headers = body === undefined ? {} : { "Content-Type": "application/json" };
  const answer = await fetch(base + path, { method, headers, body: JSON.stringify(body) });
  const text = await answer.text();
  return { status: answer.status, headers: answer.headers, body: text ? JSON.parse(text) : null };
}

const said = {};
const grant = await ask("POST", "/resources/llm/grants", { tenant: "globex", amount: 10 });
said.acquired = [grant.status, grant.body.amount];
said.settled = (await ask("POST", `/grants/${grant.body.id}/settle`, { used: 4 })).status;
const refused = await ask("POST", "/resources/llm/grants", { tenant: "globex", amount: 7 });
said.refused = [refused.status, refused.body.reason, refused.body.limit, refused.body.remaining];

const names = ["vm-7:E"];
const claim = await ask("POST", "/resources/dc/claims", { tenant: "ops", names });
said.claimed = claim.status;
said.taken = (await ask("POST", "/resources/dc/claims", { tenant: "ops", names })).status;
const waiting = ask("POST", "/resources/dc/claims", { tenant: "ops", names, wait: 20 });
await ask("DELETE", `/grants/${claim.body.id}`);
const next = await waiting;
said.waited = [next.status, BigInt(next.body.fence["vm-7"]) > BigInt(claim.body.fence["vm-7"])];
said.renewed = (await ask("POST", `/grants/${next.body.id}/renew`, { ttl: 5 })).status;

let answer;
do {
  answer = await ask("POST", "/resources/cache/grants", { tenant: "acme", amount: 20 });
} while (answer.status === 201);
said.rate = { policy: answer.headers.get("ratelimit-policy"), retry: Number(answer.headers.get("retry-after")) >= 1 };
console.log(JSON.stringify(said));
