import { Empty } from "../parts/empty";
import type { ViewProps } from "../view";

export function RanksView(_: ViewProps) {
  return <Empty title="Not built yet." />;
}
