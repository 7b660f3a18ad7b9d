/**
 * The stream of changes, which all views share: one connection for the whole page.
 *
 * A view that has read a page subscribes with the page's cursor. One without a cursor reads when `onReset` is called.
 * Deltas say the newest state of a row, so a view may get one twice. Two connections are open only while two views
 * follow the same table with different filters.
 */

import { signal } from "@preact/signals";
import { addressOf } from "./client";
import type { ServerEvent } from "./event_text";
import { type Changes, callAll, canJoin, grouped, type Parts, parametersOf, selected, startOf } from "./live_parts";
import { type Follower, follow } from "./stream";

export interface Subscription {
  parts: Parts;
  /** That of the page that was read before; empty if the view has read nothing. */
  cursor: string;
  onChanges: (changes: Changes) => void;
  /**
   * Changes may have been missed: read anew. Later changes come all the same. Called without a cursor as soon as the
   * stream is open, and where the gateway refuses it.
   */
  onReset: () => void;
}

// A reset comes to all open pages at once. Each of them reads within so long, not all at the same moment.
const SPREAD_MILLISECONDS = 800;

interface Member extends Subscription {
  /** Whether `onReset` is still to be called for the first reading. */
  isUnread: boolean;
  /** Set from a reset until `onReset` is called. */
  resetting: ReturnType<typeof setTimeout> | undefined;
}

interface Connection {
  key: string;
  members: Set<Member>;
  follower: Follower;
  /** That of its last event; empty before the first one. */
  cursor: string;
  /** Whether the gateway has refused it. */
  isRefused: boolean;
  /** Why the gateway refuses it, or cannot send a part; empty while all is well. */
  problem: string;
}

/** Why what the views show is not kept up to date; empty while it is. */
export const streamProblem = signal("");

const members = new Set<Member>();
let connections: Connection[] = [];
let isArranging = false;

/** Follows changes until the returned function is called. */
export function subscribe(subscription: Subscription): () => void {
  const member: Member = { ...subscription, isUnread: subscription.cursor === "", resetting: undefined };
  members.add(member);
  arrangeSoon();
  return () => {
    clearTimeout(member.resetting);
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
  const groups = grouped(members).map(({ parts, members: wanted }) => {
    const key = JSON.stringify(parametersOf(parts));
    const isFormer = (one: Connection) =>
      one.key === key && wanted.every((member) => one.members.has(member) || (!one.isRefused && canJoin(member)));
    return { key, parts, wanted, kept: former.find(isFormer) };
  });
  // The others end before new ones begin: a member must not get an event of both.
  for (const connection of former) {
    if (!groups.some(({ kept }) => kept === connection)) connection.follower.stop();
  }
  connections = groups.map(({ key, parts, wanted, kept }) => {
    if (kept === undefined) return open(key, parts, wanted);
    for (const member of wanted) if (!kept.members.has(member)) join(kept, member);
    return kept;
  });
  showProblem();
}

/** Adds a view that has read nothing. It reads now, or with the event `open` of a stream that is not open yet. */
function join(connection: Connection, member: Member): void {
  connection.members.add(member);
  if (connection.cursor === "") return;
  member.cursor = connection.cursor;
  callAll([member], readFirst, reportError);
}

function open(key: string, parts: Parts, wanted: Member[]): Connection {
  const connection: Connection = {
    key,
    members: new Set(wanted),
    follower: { stop: () => {} },
    cursor: "",
    isRefused: false,
    problem: "",
  };
  const address = addressOf("/api/v1/stream", {}, { ...parametersOf(parts), cursor: startOf(wanted) });
  connection.follower = follow(
    address,
    (event) => {
      if (event.name !== "problem") return pass(event, connection);
      connection.problem = (JSON.parse(event.data) as { detail: string }).detail;
      showProblem();
    },
    (error) => {
      connection.isRefused = error !== null;
      connection.problem = error?.message ?? "";
      showProblem();
      if (error !== null) callAll(connection.members, readFirst, reportError);
    },
  );
  return connection;
}

function pass(event: ServerEvent, connection: Connection): void {
  const changes = event.name === "changes" ? (JSON.parse(event.data) as Changes) : null;
  if (event.id !== "") connection.cursor = event.id;
  const passTo = (member: Member) => {
    if (event.id !== "") member.cursor = event.id;
    const own = changes === null ? null : selected(changes, member.parts);
    if (event.name === "open") readFirst(member);
    else if (event.name === "reset") resetSoon(member);
    else if (own !== null) member.onChanges(own);
  };
  callAll(connection.members, passTo, reportError);
}

function resetSoon(member: Member): void {
  if (member.resetting !== undefined) return;
  member.resetting = setTimeout(() => {
    member.resetting = undefined;
    member.onReset();
  }, Math.random() * SPREAD_MILLISECONDS);
}

function readFirst(member: Member): void {
  if (!member.isUnread) return;
  member.isUnread = false;
  member.onReset();
}

function showProblem(): void {
  streamProblem.value = connections.find(({ problem }) => problem !== "")?.problem ?? "";
}
