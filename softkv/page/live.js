/* A page of a server asks it for what it shows. */

const enter = () => {};
