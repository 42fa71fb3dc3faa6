declare module "*.css";

/** The version of the page, set by build.mjs. */
declare const STEPWELL_UI: string;
