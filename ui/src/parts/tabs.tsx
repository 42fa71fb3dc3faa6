import { useEffect, useRef } from "preact/hooks";
import { navigate } from "../router";

interface Props {
  label: string;
  tabs: { key: string; title: string; href: string }[];
  chosen: string;
}

/** Tabs that are links: arrow keys, Home and End move between them. */
export function Tabs({ label, tabs, chosen }: Props) {
  const list = useRef<HTMLDivElement>(null);
  useEffect(() => {
    const tab = list.current?.querySelector<HTMLElement>('[aria-selected="true"]');
    if (tab && list.current) {
      const { offsetLeft, offsetWidth } = tab;
      const { scrollLeft, clientWidth } = list.current;
      if (offsetLeft < scrollLeft || offsetLeft + offsetWidth > scrollLeft + clientWidth) {
        list.current.scrollLeft = offsetLeft - 24;
      }
    }
  }, [chosen]);
  const move = (event: KeyboardEvent): void => {
    const at = tabs.findIndex(({ key }) => key === chosen);
    const goals: Record<string, number> = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: tabs.length - 1 };
    const goal = goals[event.key];
    if (goal === undefined) return;
    event.preventDefault();
    const tab = tabs[(goal + tabs.length) % tabs.length];
    if (!tab) return;
    navigate(tab.href);
    list.current?.querySelector<HTMLElement>(`#tab-${tab.key}`)?.focus();
  };
  return (
    <div class="tabs" role="tablist" aria-label={label} ref={list} onKeyDown={move}>
      {tabs.map(({ key, title, href }) => (
        <a
          key={key}
          id={`tab-${key}`}
          role="tab"
          href={href}
          aria-selected={key === chosen}
          aria-controls="view"
          tabIndex={key === chosen ? 0 : -1}
        >
          {title}
        </a>
      ))}
    </div>
  );
}
