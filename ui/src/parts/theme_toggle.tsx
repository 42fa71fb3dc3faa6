import { setTheme, useTheme } from "../theme";

/** Switches between light and dark. */
export function ThemeToggle() {
  const theme = useTheme();
  const other = theme === "dark" ? "light" : "dark";
  return (
    <button class="icon-button" type="button" onClick={() => setTheme(other)} aria-label={`Use ${other} colours`} title={`Use ${other} colours`}>
      <svg viewBox="0 0 16 16" width="16" height="16" aria-hidden="true">
        {theme === "dark" ? (
          <path
            d="M8 4.5A3.5 3.5 0 1 1 8 11.5 3.5 3.5 0 0 1 8 4.500M8 1v1.500M8 13.500V15M1 8h1.500M13.500 8H15M3 3l1.100 1.100M11.900 11.900 13 13M13 3l-1.100 1.100M4.100 11.900 3 13"
            fill="none"
            stroke="currentColor"
            stroke-width="1.3"
            stroke-linecap="round"
          />
        ) : (
          <path d="M13.500 9.800A5.800 5.800 0 0 1 6.200 2.500a5.800 5.800 0 1 0 7.300 7.300z" fill="none" stroke="currentColor" stroke-width="1.3" stroke-linejoin="round" />
        )}
      </svg>
    </button>
  );
}
