package tollgate

// Queued is the number of checks that wait for a call.
func (c *Client) Queued() int {
	c.batcher.mutex.Lock()
	defer c.batcher.mutex.Unlock()
	return c.batcher.queue.Len()
}
