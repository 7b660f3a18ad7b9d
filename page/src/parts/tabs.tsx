/** Tabs whose choice is in the address. The arrow keys move between them. */

import type { ComponentChildren } from "preact";
import { place, setQuery } from "../router";

interface Tab {
  id: string;
  title: string;
  show: () => ComponentChildren;
}

export function Tabs({ label, tabs }: { label: string; tabs: Tab[] }) {
  const asked = place.value.query.get("tab");
  const index = Math.max(
    0,
    tabs.findIndex((tab) => tab.id === asked),
  );
  const choose = (next: number) => {
    const tab = tabs[(next + tabs.length) % tabs.length];
    setQuery({ tab: tab === undefined || tab === tabs[0] ? "" : tab.id });
  };
  const onKeyDown = (event: KeyboardEvent) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (step === undefined) return;
    choose(index + step);
    const buttons = (event.currentTarget as HTMLElement).querySelectorAll("button");
    buttons[(index + step + tabs.length) % tabs.length]?.focus();
  };
  return (
    <>
      <div role="tablist" aria-label={label} onKeyDown={onKeyDown}>
        {tabs.map((tab, each) => (
          <button
            key={tab.id}
            type="button"
            role="tab"
            id={`tab-${tab.id}`}
            aria-selected={each === index}
            aria-controls="tabpanel"
            tabIndex={each === index ? 0 : -1}
            onClick={() => choose(each)}
          >
            {tab.title}
          </button>
        ))}
      </div>
      <div role="tabpanel" id="tabpanel" aria-labelledby={`tab-${tabs[index]?.id}`}>
        {tabs[index]?.show()}
      </div>
    </>
  );
}
