// What the gateway says of this page: its token, the viewer's tenant, and which buttons there are.
export const settings = JSON.parse(document.querySelector('meta[name="octavo"]').content);

// Changes something. The token is of this load of the page: a stranger's page has none.
export async function press(path, body) {
  const headers = { "Content-Type": "application/json", "X-Octavo-Page": settings.token };
  const reply = await fetch(path, { method: "POST", headers, body: JSON.stringify(body) });
  const answer = await reply.json().catch(() => ({}));
  if (!reply.ok) throw new Error(answer.error?.message ?? `the gateway answered ${reply.status}`);
  return answer;
}

export async function look(path) {
  const reply = await fetch(path);
  const answer = await reply.json().catch(() => ({}));
  if (!reply.ok) throw new Error(answer.error?.message ?? `the gateway answered ${reply.status}`);
  return answer;
}
