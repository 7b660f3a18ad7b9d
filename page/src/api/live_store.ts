/**
 * The stream of changes, which all views share: one connection for the whole page.
 *
 * A view reads its first page, and subscribes with the page's cursor. Deltas say the newest state of a row, so a view may
 * get one twice. Two connections are open only while two views follow the same table with different filters.
 */

import { type ApiError, addressOf } from "./client";
import { type Changes, grouped, type Parts, parametersOf } from "./live_parts";
import { type Follower, follow } from "./stream";

export interface Subscription {
  parts: Parts;
  /** That of the page that was read before; empty for now. */
  cursor: string;
  onChanges: (changes: Changes) => void;
  /** Too much has changed: the pages must be read anew. Later changes come all the same. */
  onReset: () => void;
  /** The stream is refused, and is not tried again. */
  onError?: (error: ApiError) => void;
}

interface Member extends Subscription {
  /** When the cursor was read, as a count: a smaller one is older. */
  readAt: number;
  /** Whether a connection has been opened for it. */
  isOpen: boolean;
}

interface Connection {
  key: string;
  members: Set<Member>;
  follower: Follower;
}

const members = new Set<Member>();
let connections: Connection[] = [];
let numRead = 0;
let isArranging = false;

/** Follows changes until the returned function is called. */
export function subscribe(subscription: Subscription): () => void {
  const member: Member = { ...subscription, readAt: ++numRead, isOpen: false };
  members.add(member);
  arrangeSoon();
  return () => {
    members.delete(member);
    for (const connection of connections) connection.members.delete(member);
    arrangeSoon();
  };
}

function arrangeSoon(): void {
  if (isArranging) return;
  isArranging = true;
  // A change of the view ends and begins subscriptions; one connection follows from all of them.
  setTimeout(() => {
    isArranging = false;
    arrange();
  });
}

function arrange(): void {
  const former = connections;
  connections = grouped(members).map(({ parts, members: wanted }) => {
    const key = JSON.stringify(parametersOf(parts));
    const isFormer = (one: Connection) => one.key === key && wanted.every((member) => one.members.has(member));
    return former.find(isFormer) ?? open(key, parts, wanted);
  });
  for (const connection of former) if (!connections.includes(connection)) connection.follower.stop();
}

function open(key: string, parts: Parts, wanted: Member[]): Connection {
  const set = new Set(wanted);
  const oldest = wanted.reduce((one, other) => (startOf(one) <= startOf(other) ? one : other));
  for (const member of wanted) {
    // It starts at a place of which it is not known whether it is before this one's.
    if (member.isOpen && oldest.cursor === "") member.onReset();
    member.isOpen = true;
  }
  const address = addressOf("/api/v1/stream", {}, { ...parametersOf(parts), cursor: oldest.cursor });
  const follower = follow(
    address,
    (event) => {
      const readAt = ++numRead;
      for (const member of set) {
        if (event.id !== "") Object.assign(member, { cursor: event.id, readAt });
        if (event.name === "changes") member.onChanges(JSON.parse(event.data) as Changes);
        else if (event.name === "reset") member.onReset();
      }
    },
    (error) => {
      for (const member of set) member.onError?.(error);
    },
  );
  return { key, members: set, follower };
}

/** A member without a cursor needs a stream that starts without one. */
function startOf(member: Member): number {
  return member.cursor === "" ? 0 : member.readAt;
}
