/** A place whose content is made only while it is near the part of the page that is seen. */

import type { ComponentChildren } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";

export function WhileVisible({ height, children }: { height: number; children: () => ComponentChildren }) {
  const place = useRef<HTMLDivElement>(null);
  const [isVisible, setVisible] = useState(false);
  useEffect(() => {
    if (place.current === null) return;
    const watching = new IntersectionObserver(([entry]) => setVisible(entry?.isIntersecting === true), {
      rootMargin: "300px",
    });
    watching.observe(place.current);
    return () => watching.disconnect();
  }, []);
  return (
    <div ref={place} style={{ minHeight: `${height}px` }}>
      {isVisible ? children() : null}
    </div>
  );
}
