import { Empty } from "../parts/empty";
import type { ViewProps } from "../view";

export function MediaView(_: ViewProps) {
  return <Empty title="Not built yet." />;
}
