import { render } from "preact";
import { useEffect, useRef } from "preact/hooks";
import { containedRun, isReport } from "./api";
import { Boundary } from "./parts/boundary";
import { Empty } from "./parts/empty";
import { ThemeToggle } from "./parts/theme_toggle";
import { watchPrinting } from "./print";
import { href, navigate, useRoute } from "./router";
import "./styles/index.css";
import { CompareView } from "./views/compare";
import { RunPage } from "./views/run";
import { RunsView } from "./views/runs";

function App() {
  const { parts } = useRoute();
  const main = useRef<HTMLElement>(null);
  const page = `${parts[0] ?? ""}/${parts[1] ?? ""}`;
  const isFirst = useRef(true);
  useEffect(() => {
    // A new page starts at its top, and a screen reader reads on from there.
    if (isFirst.current) isFirst.current = false;
    else {
      window.scrollTo(0, 0);
      main.current?.focus({ preventScroll: true });
    }
  }, [page]);
  return (
    <>
      <a
        class="skip"
        href="#main"
        onClick={(event) => {
          event.preventDefault();
          main.current?.focus();
        }}
      >
        Skip to content
      </a>
      <header class="bar">
        <a class="brand" href={isReport ? undefined : href([])}>
          <svg viewBox="0 0 16 16" width="16" height="16" aria-hidden="true">
            <path d="M1 3h4v3h3v3h3v3h4v2H9v-3H6V8H3V5H1z" fill="currentColor" />
          </svg>
          stepwell
        </a>
        {!isReport && (
          <nav class="bar-nav" aria-label="Pages">
            <a href={href([])} aria-current={parts.length === 0 ? "page" : undefined}>
              Runs
            </a>
          </nav>
        )}
        <ThemeToggle />
      </header>
      <main id="main" ref={main} tabIndex={-1}>
        <Boundary key={page}>
          <Page parts={parts} />
        </Boundary>
      </main>
    </>
  );
}

function Page({ parts }: { parts: string[] }) {
  const [first, id, tab] = parts;
  if (first === undefined) {
    const only = containedRun();
    if (only) return <RunPage key={only} id={only} tab="" />;
    return <RunsView />;
  }
  if (first === "run" && id) return <RunPage key={id} id={id} tab={tab ?? ""} />;
  if (first === "compare") return <CompareView />;
  return (
    <div class="page">
      <Empty title="There is no such page.">
        <a href={href([])} onClick={() => navigate(href([]))}>
          All runs
        </a>
      </Empty>
    </div>
  );
}

watchPrinting();
const root = document.getElementById("app");
if (root) render(<App />, root);
