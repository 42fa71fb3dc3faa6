/** A small line without axes. The number beside it says what a screen reader needs. */
export function Sparkline({ values, width = 88, height = 22 }: { values: number[]; width?: number; height?: number }) {
  const finite = values.filter(Number.isFinite);
  if (finite.length < 2) return <svg width={width} height={height} aria-hidden="true" class="sparkline" />;
  const low = Math.min(...finite);
  const range = Math.max(...finite) - low || 1;
  const x = (at: number): string => (1.5 + (at / (finite.length - 1)) * (width - 3)).toFixed(1);
  const y = (value: number): string => (height - 2 - ((value - low) / range) * (height - 4)).toFixed(1);
  const path = finite.map((value, at) => `${at ? "L" : "M"}${x(at)} ${y(value)}`).join("");
  return (
    <svg width={width} height={height} aria-hidden="true" class="sparkline">
      <path d={path} />
      <circle cx={x(finite.length - 1)} cy={y(finite.at(-1) ?? 0)} r="1.800" />
    </svg>
  );
}
