/** PURE: reads server-sent events from a text that arrives in parts. */

export interface ServerEvent {
  name: string;
  id: string;
  data: string;
}

/** Returns the complete events of the text, and the rest, which belongs before the next part. */
export function readEvents(text: string): { events: ServerEvent[]; rest: string } {
  // A line break of two characters may be divided between two parts.
  const held = text.endsWith("\r") ? "\r" : "";
  const blocks = text
    .slice(0, text.length - held.length)
    .replace(/\r\n?/g, "\n")
    .split("\n\n");
  const rest = (blocks.pop() ?? "") + held;
  return { events: blocks.map(readEvent).filter((event) => event !== null), rest };
}

function readEvent(block: string): ServerEvent | null {
  const event: ServerEvent = { name: "message", id: "", data: "" };
  const data: string[] = [];
  for (const line of block.split("\n")) {
    const colon = line.indexOf(":");
    if (colon === 0) continue;
    const field = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
    if (field === "event") event.name = value;
    else if (field === "id") event.id = value;
    else if (field === "data") data.push(value);
  }
  event.data = data.join("\n");
  return data.length === 0 ? null : event;
}

/** Returns the milliseconds before try number `count`, from 0. random: from 0 to 1. */
export function backoff(count: number, random: number): number {
  return Math.min(30_000, 500 * 2 ** count) * (0.5 + random / 2);
}
