// js-libp2p 3 is written for Node 22; this is all that Node 20 lacks.
Promise.withResolvers ??= () => {
  const made = {}
  made.promise = new Promise((resolve, reject) => Object.assign(made, { resolve, reject }))
  return made
}
