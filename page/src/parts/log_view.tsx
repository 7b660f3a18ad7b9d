/**
 * The log of a trial or of a whole experiment, of any length. Only the lines near the visible ones are in the document;
 * older and later ones are read as one scrolls, and following the end is a stream.
 */

import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { type ApiError, addressOf, api, type Schemas } from "../api/client";
import { follow } from "../api/stream";
import { KEPT_LINES, readRanks, shownText, withLater, withOlder } from "../lib/log_lines";
import { formatUtc } from "../lib/text";
import { place, setQuery } from "../router";
import { complain } from "../toast";
import { Command, Empty, Problem } from "./basic";
import { DraftInput } from "./draft_input";

type StoredLog = Schemas["StoredLog"];
const LEVELS = ["", "DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"];
const PAGE_LINES = 1000;
const ROW = 20;
const OVERSCAN = 20;

interface Filter {
  level: string;
  ranks: string;
  text: string;
  isPattern: boolean;
}

interface Props {
  of: "trials" | "experiments";
  id: string;
}

export function LogView({ of, id }: Props) {
  const query = place.value.query;
  const filter: Filter = {
    level: query.get("level") ?? "",
    ranks: query.get("ranks") ?? "",
    text: query.get("text") ?? "",
    isPattern: query.get("pattern") === "1",
  };
  // A link to a time begins there.
  const at = query.get("at") ?? "";
  const [isFollowing, setFollowing] = useState(Number.isNaN(Date.parse(at)));
  const { lines, isEmpty, error, isWhole, loadOlder, loadLater, jump } = useLines(of, id, filter, isFollowing, () =>
    setFollowing(false),
  );
  const noun = of === "trials" ? "trial" : "experiment";
  useEffect(() => {
    if (!isFollowing && !Number.isNaN(Date.parse(at))) void jump(new Date(at));
  }, [at]);
  return (
    <>
      <Filters filter={filter} />
      <div class="row">
        <label>
          Jump to{" "}
          <input
            type="datetime-local"
            step="1"
            onChange={(event) => event.currentTarget.value !== "" && jump(new Date(event.currentTarget.value))}
          />
        </label>
        <label>
          <input
            type="checkbox"
            checked={isFollowing}
            onChange={(event) => setFollowing(event.currentTarget.checked)}
          />{" "}
          follow
        </label>
        <Command text={`gangline ${noun} logs -f ${id}`} />
      </div>
      <Problem error={error} />
      <Lines
        lines={lines}
        hasTrial={of === "experiments"}
        isFollowing={isFollowing}
        onTop={loadOlder}
        onBottom={loadLater}
        onLeave={() => setFollowing(false)}
      />
      {isEmpty ? <Empty>No line matches so far.</Empty> : null}
      <p class="quiet" role="status">
        {lines.length} lines are here{isWhole ? ", from the first one on" : "; scroll up for older ones"}
        {lines.length >= KEPT_LINES ? ". Those at the other end were let go." : ""}
      </p>
    </>
  );
}

function Filters({ filter }: { filter: Filter }) {
  return (
    <div class="row">
      <label>
        Level{" "}
        <select value={filter.level} onChange={(event) => setQuery({ level: event.currentTarget.value })}>
          {LEVELS.map((each) => (
            <option key={each} value={each}>
              {each === "" ? "all" : `${each} and above`}
            </option>
          ))}
        </select>
      </label>
      <DraftInput
        label="Ranks"
        isShort
        placeholder="all, or 0,2"
        value={filter.ranks}
        onCommit={(text) => {
          if (readRanks(text) === null) complain(`ranks are numbers, such as 0,2, not ${text}`);
          else setQuery({ ranks: text });
        }}
      />
      <DraftInput label="Text" value={filter.text} onCommit={(text) => setQuery({ text })} />
      <label>
        <input
          type="checkbox"
          checked={filter.isPattern}
          onChange={(event) => setQuery({ pattern: event.currentTarget.checked ? "1" : "" })}
        />{" "}
        is a pattern (RE2)
      </label>
    </div>
  );
}

function useLines(of: Props["of"], id: string, filter: Filter, isFollowing: boolean, stopFollowing: () => void) {
  const [lines, setLines] = useState<StoredLog[]>([]);
  const [error, setError] = useState<ApiError | null>(null);
  const [isWhole, setWhole] = useState(false);
  const [isEmpty, setEmpty] = useState(false);
  const [isEnd, setEnd] = useState(true);
  const isBusy = useRef(false);
  const where = of === "trials" ? "/api/v1/trials/{id}/logs" : "/api/v1/experiments/{id}/logs";
  const wanted = {
    level: filter.level,
    rankIds: readRanks(filter.ranks) ?? [],
    searchText: filter.text,
    enableRegex: filter.isPattern,
  };
  const key = JSON.stringify([of, id, wanted]);
  useEffect(() => {
    if (!isFollowing) return;
    setLines([]);
    setError(null);
    setEmpty(true);
    setWhole(false);
    setEnd(true);
    // Lines come one by one; the view shows them together, at most once for each frame of the screen.
    let waiting: StoredLog[] = [];
    let frameId = 0;
    const show = () => {
      frameId = 0;
      const added = waiting;
      waiting = [];
      setEmpty(false);
      setLines((former) => withLater(former, added));
    };
    const follower = follow(
      addressOf(where, { id }, { ...wanted, follow: true, tail: PAGE_LINES }),
      (event) => {
        if (event.name !== "log") return;
        waiting.push(JSON.parse(event.data) as StoredLog);
        if (frameId === 0) frameId = requestAnimationFrame(show);
      },
      setError,
    );
    return () => {
      cancelAnimationFrame(frameId);
      follower.stop();
    };
  }, [key, isFollowing]);
  // Without following, another filter begins at the end of what matches.
  const shown = useRef(key);
  useEffect(() => {
    if (shown.current !== key && !isFollowing) void readOlder([]);
    shown.current = key;
  }, [key, isFollowing]);

  const read = async (query: object): Promise<Schemas["LogPage"] | null> => {
    if (isBusy.current) return null;
    isBusy.current = true;
    try {
      const parts = { query: { ...wanted, ...query, limit: PAGE_LINES } };
      const page =
        of === "trials"
          ? await api.get("/api/v1/trials/{trial_id}/logs", { parts: { trial_id: id }, ...parts })
          : await api.get("/api/v1/experiments/{experiment_id}/logs", {
              parts: { experiment_id: Number(id) },
              ...parts,
            });
      setError(null);
      return page;
    } catch (failure) {
      setError(failure as ApiError);
      return null;
    } finally {
      isBusy.current = false;
    }
  };
  const readOlder = async (former: StoredLog[]) => {
    // With filters a page may be empty although older lines match, so the search goes on.
    let before: number | null = former[0]?.id ?? Number.MAX_SAFE_INTEGER;
    while (before !== null) {
      const page = await read({ beforeId: before });
      if (page === null) return;
      before = page.nextBeforeId ?? null;
      if (before === null) setWhole(true);
      if (page.logs.length === 0) continue;
      setEmpty(false);
      if (former.length === 0) setLines(page.logs);
      else setLines((now) => withOlder(now, page.logs));
      if (former.length + page.logs.length > KEPT_LINES) {
        setEnd(false);
        stopFollowing();
      }
      return;
    }
    if (former.length === 0) {
      setLines([]);
      setEmpty(true);
    }
  };
  const loadOlder = () => {
    if (!isWhole && lines.length > 0) void readOlder(lines);
  };
  const loadLater = async () => {
    const last = lines.at(-1)?.id;
    if (isFollowing || last === undefined || isEnd) return;
    const page = await read({ afterId: last });
    if (page === null) return;
    if (page.nextAfterId === null) setEnd(true);
    if (page.logs.length > 0) {
      if (lines.length + page.logs.length > KEPT_LINES) setWhole(false);
      setLines((now) => withLater(now, page.logs));
    }
  };
  const jump = async (time: Date) => {
    stopFollowing();
    const query = { time: time.toISOString() };
    try {
      const found =
        of === "trials"
          ? await api.get("/api/v1/trials/{trial_id}/logs/place", { parts: { trial_id: id }, query })
          : await api.get("/api/v1/experiments/{experiment_id}/logs/place", {
              parts: { experiment_id: Number(id) },
              query,
            });
      const page = await read({ afterId: found.id - 1 });
      if (page === null) return;
      setWhole(false);
      setEnd(page.nextAfterId === null);
      setEmpty(page.logs.length === 0);
      setLines(page.logs);
    } catch (failure) {
      complain(failure);
    }
  };
  return { lines, isEmpty, error, isWhole, loadOlder, loadLater, jump };
}

interface LinesProps {
  lines: StoredLog[];
  hasTrial: boolean;
  isFollowing: boolean;
  onTop: () => void;
  onBottom: () => void;
  onLeave: () => void;
}

function Lines({ lines, hasTrial, isFollowing, onTop, onBottom, onLeave }: LinesProps) {
  const frame = useRef<HTMLDivElement>(null);
  const [top, setTop] = useState(0);
  const [height, setHeight] = useState(600);
  const first = useRef<number | null>(null);
  const firstId = lines[0]?.id ?? null;
  useLayoutEffect(() => {
    const target = frame.current;
    if (target === null) return;
    setHeight(target.clientHeight);
    if (isFollowing) {
      target.scrollTop = target.scrollHeight;
    } else if (first.current !== null && first.current !== firstId) {
      // Lines that came before the visible ones do not move them.
      const moved = lines.findIndex((line) => line.id === first.current);
      if (moved > 0) target.scrollTop += moved * ROW;
      else if (moved < 0) target.scrollTop = 0;
    }
    first.current = firstId;
    setTop(target.scrollTop);
  }, [lines, isFollowing]);
  const onScroll = () => {
    const target = frame.current;
    if (target === null) return;
    const isUp = target.scrollTop < top - 1;
    setTop(target.scrollTop);
    const distance = target.scrollHeight - target.scrollTop - target.clientHeight;
    if (isFollowing && isUp && distance > ROW) onLeave();
    if (isUp && target.scrollTop < ROW * OVERSCAN) onTop();
    if (!isUp && distance < ROW * OVERSCAN) onBottom();
  };
  const from = Math.max(0, Math.floor(top / ROW) - OVERSCAN);
  const to = Math.min(lines.length, Math.ceil((top + height) / ROW) + OVERSCAN);
  return (
    <div
      ref={frame}
      class="logs virtual"
      role="log"
      aria-label="Lines of the log"
      aria-live="off"
      // biome-ignore lint/a11y/noNoninteractiveTabindex: it is scrolled by keyboard
      tabIndex={0}
      onScroll={onScroll}
    >
      <div style={{ height: `${lines.length * ROW}px` }}>
        <div style={{ transform: `translateY(${from * ROW}px)` }}>
          {lines.slice(from, to).map((stored) => (
            <LogRow key={stored.id} stored={stored} hasTrial={hasTrial} />
          ))}
        </div>
      </div>
    </div>
  );
}

const MARKS: Record<string, string> = { WARNING: "W ", ERROR: "E ", CRITICAL: "C " };

function LogRow({ stored: { line, time, trialId }, hasTrial }: { stored: StoredLog; hasTrial: boolean }) {
  const clock = time ? new Date(time).toLocaleTimeString(undefined, { hour12: false }) : "";
  return (
    <div class={`line ${line.level.toLowerCase()}`} title={time ? `${formatUtc(time)}, ${line.agentId}` : ""}>
      <span class="quiet">{clock} </span>
      {hasTrial ? `${trialId} ` : ""}
      {line.rank === null ? "" : `[${line.rank}] `}
      {MARKS[line.level] ?? ""}
      <bdi>{shownText(line.text)}</bdi>
    </div>
  );
}
